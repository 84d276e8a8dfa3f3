"""What a process or a thread remembers by itself. No module here queries the
database.
"""
