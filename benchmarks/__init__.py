"""The benchmarks of a cluster: render batch scripts from a plan, and read their output.

    job = SUITE["hpl"].render(plan)            # the options for sbatch, and the script
    reading = SUITE["hpl"].parse(output, plan.nonce)

Nothing here runs a command, opens a file (except its own templates) or knows the
supervisor.
"""
