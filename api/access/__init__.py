"""Who may call: tokens, OIDC, roles, limits of rate."""
