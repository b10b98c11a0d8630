"""Messages counted among their like."""

from evenstep.hooks.torch.message_orders import MessageOrders


def test_messages_are_counted_by_tag_within_bounds():
    orders = MessageOrders(limit=2)
    often, rarely, once = ((1, 0, 10, tag) for tag in range(3))
    found = [orders.next(kind) for kind in (often, rarely, often, once, often, rarely)]
    assert found == [0, 0, 1, 0, 2, 0]  # the one unused for longest was forgotten
