"""REST: thin, async, no engine logic. `create_app` in `api.app`, `Server` in `api.serving.server`."""
