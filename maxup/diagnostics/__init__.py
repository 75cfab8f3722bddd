"""Check that MaxUp is applied correctly to your model, batch, loss and perturbation.

`run_checks` yields one `Finding` per check: is the worst copy worse than the average one, does selection leave side
effects, does m = 1 equal the plain training loop, is the worst copy replayed exactly, and what does a step cost? The
model, its gradients and the random states are restored.

Example:
    >>> import torch
    >>> from maxup import Gaussian
    >>> from maxup.diagnostics import Inputs, run_checks
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    >>> x, y = torch.randn(32, 8), torch.randint(3, (32,))
    >>> findings = list(run_checks(Inputs(model, (x, y), perturbation=Gaussian(0.1))))
    >>> [finding.text for finding in findings if finding.level == "error"]
    []
    >>> print(findings[0])
    ok      two passes with the same random state agree

On the command line, `maxup doctor MODULE:FUNCTION` prints the findings.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maxup.diagnostics.checks import Finding as Finding
    from maxup.diagnostics.checks import run_checks as run_checks
    from maxup.diagnostics.inputs import Inputs as Inputs
    from maxup.diagnostics.inputs import make_inputs as make_inputs
else:
    from maxup.lazy import lazy_exports

    __all__, __getattr__, __dir__ = lazy_exports(
        __name__, {"checks": "Finding run_checks", "inputs": "Inputs make_inputs"}
    )
