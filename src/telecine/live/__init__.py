"""Segments of live streams: frames of the last seconds, again and again, for weeks.

**Threads.** Each capture has two threads. The *reader* opens the connection and reads packets into a bounded queue; it
ends with its connection. The *capture thread* takes the packets, decodes those that a wanted frame needs, and delivers
segments. It is also the watchdog: it abandons a reader that gives no sign of life, and starts the next one after a
backoff. A reader is interrupted by closing the socket under FFmpeg, which belongs to a relay of this package.
Consumers of one URI with equal options share a capture; the last one to leave closes it.

**Clocks.** *Arrival time* is the monotonic clock when a packet was read. It decides when segments begin and end and
which frames are wanted, so a camera whose clock is wrong cannot change the rate of segments. *Stream time* follows the
timestamps of the packets and gives the times of frames; it continues at a jump or a new connection and never goes back.
*Wall-clock time* of a frame is the sender's where RTCP gives a plausible one, else derived from arrival; it never
goes back either.

**States.** ``connecting`` until the first packet, ``live``, ``idle`` while the connection is open but silent,
``waiting`` for the next attempt, and at the end ``ended`` (a recording is over), ``failed`` or ``closed``.

**Memory.** Each consumer holds the newest segment only. The queue of packets is bounded; if decoding is too slow,
packets are dropped up to the next random access point, and counted.
"""

__all__: list[str] = []
