"""An entry tells which files belong to which size."""

from turnwise.data.entries import Download, Entry


def make(*downloads):
    return Entry("s", "t", ("a",), 1, 28, "", "", "", (), downloads=downloads)


def test_only_the_files_of_the_wished_size_are_fetched():
    small, large = Download("u", "a", "m", 28), Download("u", "b", "m", 64)
    assert make(small, large).downloads_of(64) == (large,)
    assert make(small, large).downloads_of(32) == ()


def test_files_without_a_size_belong_to_every_size():
    images, labels = Download("u", "a", "m"), Download("u", "b", "m")
    assert make(images, labels).downloads_of(64) == (images, labels)
    assert make(images, labels).downloads_of() == (images, labels)
