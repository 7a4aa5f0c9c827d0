"""A lost answer to the driver's poll is given again, and an acknowledged one is not."""

from engine.live.body.handed import Handed


def test_lost_answer_is_given_again_and_nothing_twice() -> None:
    waiting = [["a", "b"], ["c"], []]
    handed = Handed[str]()
    first = handed.after(0, lambda: waiting.pop(0))
    assert first == (1, ["a", "b"])
    assert handed.after(0, lambda: waiting.pop(0)) == first, "the lost answer is repeated"
    assert handed.after(1, lambda: waiting.pop(0)) == (2, ["c"])
    assert handed.after(2, lambda: waiting.pop(0)) == (3, [])
