"""Access to the API: tokens, OIDC, roles, limits of rate."""
