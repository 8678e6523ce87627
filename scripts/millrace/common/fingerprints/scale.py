"""How far apart the words of a fingerprint of sound stand, and how long a moment each looks at."""

# Words of sound that others are compared with stand this far apart.
STEP_SECONDS = 0.008
# So many steps lie between the words of sound that is searched for copies of it, which is more.
SEARCHED_STEPS = 8
# The sound that one word looks at.
SPAN_SECONDS = 0.32
# Digital silence has no changes: its word says nothing.
SILENCE = 0
