"""The console: pages for people, at `/ui`. A page asks the REST API as its viewer (`rest`), so role, audit and limits
are those of the API, and shows what it was told in a template. A screen is one module of `pages`, listed in
`app.SCREENS`.
"""
