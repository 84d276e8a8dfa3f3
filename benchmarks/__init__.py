"""What a cluster is measured with: batch scripts are rendered from a plan, their output is read. Pure.

    job = SUITE["hpl"].render(plan)            # what sbatch is asked for, and its script
    reading = SUITE["hpl"].parse(output, plan.nonce)

Nothing here runs a command, opens a file (but its own templates) or knows the supervisor.
"""
