"""Paths of another machine, by the prefixes of the config."""

from millrace.common.path_map import PathMap, slashed


def test_a_prefix_is_whole_folders_and_the_longest_comes_first():
    paths = PathMap({"/a": "/m/", "/a/b": "/n", "D:\\c": "/c", "/": "/r"})
    assert paths.mapped("/a/b/f.wav") == ["/n/f.wav", "/m/b/f.wav", "/r/a/b/f.wav"]
    assert paths.mapped("/a/bc/f.wav") == ["/m/bc/f.wav", "/r/a/bc/f.wav"]
    assert (slashed("D:\\c\\f.wav"), slashed("/a\\b")) == ("D:/c/f.wav", "/a\\b")


def test_a_prefix_without_a_path_is_warned_of_with_an_example():
    paths = PathMap({"/a": "/m", "/": "/n"})
    paths.mapped("a/f.wav")
    lines = paths.warnings("path_map", "paths")
    assert "none of the paths starts with /, for example a/f.wav does not" in lines[0]
    paths = PathMap({"/a": "/m", "/b": "/n"})
    for path, example in (("/a/f", "/a/f"), ("/c/f", "/c/f"), ("/a/g", "/c/f")):
        paths.mapped(path)
        (line,) = paths.warnings("path_map", "paths")
        assert f"starts with /b/, for example {example} does not" in line
