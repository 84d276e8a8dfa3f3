"""`python -m devgrid`: Ctrl-C ends it without a word while it loads, which takes a second."""

import signal

if __name__ == "__main__":
    begun = signal.getsignal(signal.SIGINT)
    if begun is signal.default_int_handler:  # it is ignored in a shell's background, and stays so
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from devgrid.command_line import main

    signal.signal(signal.SIGINT, begun)
    main()
