"""The service: captions of live streams and decoding over HTTP.

``config.py`` has the settings and who may do what, ``store.py`` keeps streams and events in SQLite, ``streams.py`` runs
the streams, ``app.py`` has the routes, and ``run.py`` runs them in uvicorn.

An event gets its number when it is committed to the database, and is delivered after that. So a number never stands
for two events, also if the process is killed, and a client that gives the last number it got misses nothing.
"""

__all__: list[str] = []
