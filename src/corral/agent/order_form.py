"""The orders of this worker, filled in: what all of them say alike, and what each attempt adds."""

from __future__ import annotations

from corral.agent.attempt import Attempt
from corral.agent.downloads import Ticket
from corral.agent.orders import encode_line
from corral.core.job import Workload
from corral.runtime.order import Endpoint, Order, Renderer


class OrderForm:
    def __init__(self) -> None:
        self.endpoint = Endpoint()
        self.renderer = Renderer("", "", [])

    def line(self, attempt: Attempt, work_dir: str) -> bytes:
        dispatch = attempt.dispatch
        order = Order(
            dispatch.job,
            dispatch.attempt,
            dispatch.document,
            self.endpoint,
            dispatch.token,
            work_dir,
            dispatch.checkpoint,
            dispatch.correlation_id,
            attempt.inputs,
            self.renderer if attempt.recipe.workload is Workload.PIPELINE else None,
        )
        return encode_line(order)

    def ticket(self, attempt: Attempt) -> Ticket:
        """For what the agent fetches on its behalf."""
        endpoint = self.endpoint
        return Ticket(endpoint.url, endpoint.certificate, *attempt.key, attempt.dispatch.token)
