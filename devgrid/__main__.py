"""`python -m devgrid`: while it loads, which takes a second, Ctrl-C ends it without a
traceback.
"""

import signal

if __name__ == "__main__":
    inherited = signal.getsignal(signal.SIGINT)
    # it is ignored in a shell's background, and stays so
    if inherited is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from devgrid.command_line import main

    signal.signal(signal.SIGINT, inherited)
    main()
