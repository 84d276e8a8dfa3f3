"""Jobs that users submit to a SLURM by themselves."""

import os
import subprocess

from devgrid.cluster.slurm import Slurm


def submit_as(slurm: Slurm, user: str, script: str, *options: str) -> int:
    """Submit a script of bash in the home of this user, who is made if there is none.
    Returns the SLURM id; it is an error of the test that SLURM refuses the job.
    """
    uid = slurm.users.add(user)
    done = subprocess.run(
        ["sbatch", "--parsable", "--mem-per-cpu=100M", *options],
        env={"PATH": os.environ["PATH"], **slurm.env()},
        input=f"#!/bin/bash\n{script}\n",
        cwd=slurm.users.home(user),
        user=uid,
        group=uid,
        extra_groups=[],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)
