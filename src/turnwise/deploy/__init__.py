"""Models in production: files, the Hub, pages that run models, and the HTTP service."""
