"""Operations: what operators do in the admin and in the shell, over Django's connection."""
