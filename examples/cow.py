"""A script that needs a package from the registry: `make demo` has it installed by the worker."""

import sys

import cowsay

from corral import job

job.progress(0.5, "the environment is there")
cowsay.cow(" ".join(sys.argv[1:]) or "moo")
job.progress(1.0, "said")
