"""`python -m nlpkit`: the form that `accelerate launch -m` and `torchrun -m` need."""

from nlpkit.cli import main

if __name__ == "__main__":
    main()
