"""What a part offers: one file for each kind of part, types alone; `check` applies them.

A contract is a class. An annotation without a value and a method with `@abstractmethod` are
required; an annotation with a value and any other method are optional, and their value or body is
the default. `registry.load` checks a part by its contract and gives it the defaults, so that every
caller reads every member directly.
"""
