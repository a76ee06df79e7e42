"""The parts of sacrebleu that are used, imported only if needed."""

from collections.abc import Callable
from types import ModuleType

from nlpkit.errors import UsageError, not_installed


def import_sacrebleu(needed_by: str) -> ModuleType:
    """Return the module sacrebleu; raise `UsageError` if it is not installed."""
    try:
        import sacrebleu
    except ImportError as error:
        raise UsageError(f"{needed_by}: {not_installed('sacrebleu')}") from error
    return sacrebleu


def borrow_tokenizer(name: str) -> tuple[Callable[[str], list[str]], str, str]:
    """Return a tokenizer of sacrebleu, its name in the signature, and sacrebleu's version."""
    library = import_sacrebleu(f"the tokenizer {name}")
    try:
        # flores101 is the new name of the same model; sacrebleu warns about the name spm.
        tokenize = library.BLEU(tokenize="flores101" if name == "spm" else name).tokenizer
    except (ImportError, RuntimeError, AssertionError, OSError, SystemExit) as error:
        # The messages of sacrebleu have several lines and say which package to install.
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, OSError):
            reason = f"sacrebleu downloads its model from the network: {reason}"
        raise UsageError(f"the tokenizer {name} cannot be used: {reason}") from error
    return (
        lambda line: tokenize(line.rstrip()).split(),
        tokenize.signature(),
        library.__version__,
    )
