"""An RTSP server that plays one H.264 or HEVC file, for the system's Python with GStreamer's bindings.

Run as a program: ``python3 gst_rtsp_server.py FILE CODEC PORT [USER PASSWORD]``. It prints its port once it listens.
"""

from __future__ import annotations

import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtsp", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtsp, GstRtspServer  # noqa: E402


def main(path: str, codec: str, port: str, user: str = "", password: str = "") -> None:
    """Serve the file at rtsp://127.0.0.1:PORT/clip until the process ends."""
    Gst.init(None)
    server = GstRtspServer.RTSPServer()
    server.set_address("127.0.0.1")
    server.set_service(port)
    factory = GstRtspServer.RTSPMediaFactory()
    number = {"h264": "264", "hevc": "265"}[codec]
    factory.set_launch(
        f'( filesrc location="{path}" ! qtdemux ! h{number}parse ! rtph{number}pay name=pay0 pt=96 config-interval=-1 )'
    )
    factory.set_shared(True)
    if user:
        auth = GstRtspServer.RTSPAuth()
        token = GstRtspServer.RTSPToken()
        token.set_string(GstRtspServer.RTSP_TOKEN_MEDIA_FACTORY_ROLE, "viewer")
        auth.set_supported_methods(GstRtsp.RTSPAuthMethod.DIGEST)
        auth.add_digest(user, password, token)
        server.set_auth(auth)
        factory.add_role_from_structure(
            Gst.Structure.from_string(
                "viewer,media.factory.access=(boolean)true,media.factory.construct=(boolean)true"
            )[0]
        )
    server.get_mount_points().add_factory("/clip", factory)
    server.attach(None)
    sys.stdout.write(f"{server.get_bound_port()}\n")
    sys.stdout.flush()
    GLib.MainLoop().run()


if __name__ == "__main__":
    main(*sys.argv[1:])
