"""context.py: a prefix that two contexts share is computed once, whoever ends first."""

from engine.backends.context import Context
from tests.fake_model import FakeKV

IDS = list(range(100, 140))


def computed(context: Context, num_ids: int) -> None:
    context.kv.ids += context.ids[context.kv.length : context.kv.length + num_ids]
    context.pass_on()


def fresh(num_computed: int = 0) -> Context:
    return Context(FakeKV(IDS[:num_computed]), IDS[:])


def test_what_is_there_is_shared_at_once():
    twin = fresh(30).fork(20)
    assert not twin.is_following
    assert (twin.kv.ids, twin.ids, twin.num_missed) == (IDS[:20], IDS[:20], 0)


def test_what_is_not_there_yet_is_waited_for():
    source = fresh(10)
    twin = source.fork(20)
    twin.ids += [1, 2]
    assert (twin.is_following, source.is_followed, twin.num_held) == (True, True, 20)
    computed(source, 9)
    assert twin.is_following
    computed(source, 9)
    assert (twin.is_following, source.is_followed) == (False, False)
    assert (twin.kv.ids, twin.num_pending, twin.num_missed) == (IDS[:20], 2, 0)


def test_an_id_that_stays_pending_is_not_waited_for():
    source = fresh(10)
    twin = source.fork(40)
    computed(source, 29)
    assert not twin.is_following
    assert (twin.kv.length, twin.num_pending, twin.num_missed) == (39, 1, 1)


def test_followers_of_followers_wait_for_the_same():
    source = fresh(10)
    second = source.fork(30)
    third = second.fork(20)
    computed(source, 20)
    assert (second.kv.ids, third.kv.ids) == (IDS[:30], IDS[:20])


def test_who_will_not_move_on_gives_what_is_there():
    source = fresh(10)
    second = source.fork(30)
    third = second.fork(20)
    source.let_go()
    assert (second.kv.ids, second.num_missed) == (IDS[:10], 20)
    assert third.is_following  # the second one computes the rest now
    computed(second, 10)
    assert (third.kv.ids, third.num_missed) == (IDS[:20], 0)


def test_a_cut_lets_go_those_who_share_what_is_cut_and_no_others():
    source = fresh(10)
    longer, shorter = source.fork(30), source.fork(20)
    source.cut(20)
    assert (longer.is_following, shorter.is_following) == (False, True)


def test_a_follower_that_is_cut_waits_for_less():
    source = fresh(10)
    twin = source.fork(30)
    twin.cut(15)
    computed(source, 5)
    assert twin.kv.ids == IDS[:15]
