"""Messages counted among their like."""

import threading

from evenstep.agent.recording.entries import MessageOrders


def test_messages_are_counted_by_tag_within_bounds():
    orders = MessageOrders(limit=2)
    often, rarely, once = ((1, 0, 10, tag) for tag in range(3))
    found = [orders.next(kind) for kind in (often, rarely, often, once, often, rarely)]
    assert found == [0, 0, 1, 0, 2, 0]  # the one unused for longest was forgotten


def test_threads_that_send_at_once_never_share_a_number():
    orders, taken = MessageOrders(), []

    def send():
        taken.extend(orders.next((1, 2, 3, 4)) for _ in range(2000))

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(8000))
