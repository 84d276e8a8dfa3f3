"""What each process shows of itself: health pages, metrics, traces; and the guards of its
main loop.
"""
