"""No deadlines: how long an example takes says nothing about whether the law holds."""

from hypothesis import settings

settings.register_profile("laws", deadline=None)
settings.load_profile("laws")
