"""What each process shows of itself: health pages, metrics, traces; and the watchdog of
its main loop.
"""
