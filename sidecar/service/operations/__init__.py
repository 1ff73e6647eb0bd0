"""Operations of users, made with the settings and clients of this process."""
