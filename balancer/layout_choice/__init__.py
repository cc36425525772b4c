"""The choice of a layout from data (DFLOP, arXiv:2603.25120): all candidates bounded, the best scheduled and priced.

:func:`~balancer.layout_choice.choose.configure` is what callers ask; nothing that plans or trains knows this room.
"""
