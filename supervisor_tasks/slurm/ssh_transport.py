"""paramiko's transport of an SSH connection, with one fault of paramiko mended.

paramiko 5.1 enters a new channel in its list before it links the channel to the
transport. If the connection ends in between, the transport's thread fails at that
channel with AttributeError. Then it neither closes the socket nor marks the transport as
ended, and the thread that opens the channel waits for the whole time-out.
"""

from typing import Any

import paramiko
from paramiko.transport import ChannelMap


class SshTransport(paramiko.Transport):
    """A transport whose thread ends in order at any moment."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._channels = _LinkedChannels()


class _LinkedChannels(ChannelMap):
    def values(self) -> list[paramiko.Channel]:
        """Return the channels that the ending transport closes. `open_channel` raises
        an error for the one that it has not linked yet, as the transport has ended.
        """
        channels: list[paramiko.Channel] = super().values()
        return [channel for channel in channels if channel.transport is not None]
