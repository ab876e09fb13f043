"""Bytes on their way in and out: packages, inputs, results, artifacts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from corral.api.rpc.guard import Calls, answers, checked, streams
from corral.api.views import filled
from corral.contract import corral_pb2 as pb
from corral.core.errors import BlobNotFound


class FileCalls(Calls):
    @answers
    async def PutPackage(self, request: AsyncIterator[pb.Chunk]) -> pb.BlobRef:
        self._parts.queue.check_room()
        chunks = (checked(chunk).data async for chunk in request)
        blob = await self._parts.blobs.put(chunks, limit=self._parts.package_limit)
        return pb.BlobRef(sha256=blob.sha256, size=blob.size)

    @answers
    async def FindAsset(self, request: pb.AssetRequest) -> pb.AssetReply:
        found = await self._parts.assets.find(request.sha256, request.size, request.path)
        if found is not None:
            return pb.AssetReply(known=True, sha256=found.sha256, size=found.size, path=found.path)
        self._parts.queue.check_room()
        return pb.AssetReply(put_url=await self._parts.assets.place(request.sha256, request.size))

    @answers
    async def PutAsset(self, request: AsyncIterator[pb.Chunk]) -> pb.BlobRef:
        self._parts.queue.check_room()
        blob = await self._parts.assets.put(checked(chunk).data async for chunk in request)
        return pb.BlobRef(sha256=blob.sha256, size=blob.size)

    @answers
    async def ListArtifacts(self, request: pb.ListArtifactsRequest) -> pb.ListArtifactsReply:
        job, index = await self._parts.queue.find(request.job_id), self._parts.artifact_index
        if request.name:
            found = filled(pb.ArtifactView, await index.find(job, request.name))
            return pb.ListArtifactsReply(artifacts=[found])
        most = self._parts.limits.page
        limit = min(request.limit or most, most)
        page = await index.page(job, after=request.after, limit=limit + 1)
        shown = (filled(pb.ArtifactView, one) for one in page[:limit])
        return pb.ListArtifactsReply(artifacts=shown, more=len(page) > limit)

    @streams
    async def GetBlob(self, request: pb.BlobRequest) -> AsyncIterator[pb.Chunk]:
        job = await self._parts.queue.find(request.job_id)
        blob = None
        if request.name == "result":
            with contextlib.suppress(BlobNotFound):
                blob = self._parts.store.result(job)
        if blob is None:
            kept = await self._parts.artifact_index.find(job, request.name)
            async for chunk in self._parts.artifacts.read(kept):
                yield pb.Chunk(data=chunk)
            return
        if blob.data is not None:
            yield pb.Chunk(data=blob.data)
            return
        async for chunk in self._parts.blobs.read(blob.sha256):
            yield pb.Chunk(data=chunk)
