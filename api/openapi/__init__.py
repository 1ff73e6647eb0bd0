"""The API described in OpenAPI: words for each call, the document made of them, and the page that shows it."""
