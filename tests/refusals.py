"""What Millrace refuses, and in which words."""

from __future__ import annotations

import pytest

from millrace.common.errors import MillraceError


def refused(words: str) -> pytest.RaisesExc[MillraceError]:
    """A block that ends with a MillraceError in words that match this regular expression."""
    return pytest.raises(MillraceError, match=words)
