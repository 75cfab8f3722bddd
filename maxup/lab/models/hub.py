"""Upload an exported model to the Hugging Face Hub."""

from pathlib import Path

from maxup.errors import LoadError, error_message


def check_repo(repo: str) -> None:
    """Raise a LoadError unless huggingface_hub is installed and the name of the repository is valid."""
    try:
        from huggingface_hub.utils import HFValidationError, validate_repo_id
    except ImportError as error:
        raise LoadError(f"--push_to_hub needs huggingface_hub: pip install huggingface_hub ({error})") from error
    try:
        validate_repo_id(repo)
    except HFValidationError:
        raise LoadError(
            f"--push_to_hub {repo!r} is not the name of a repository on the Hub; use letters, digits, -, _ and ., such "
            "as me/my-model"
        ) from None


def push_to_hub(folder: Path, repo: str) -> str:
    """Upload the files of an exported model, and return the address of the repository.

    A new repository is private. The token is the one of `hf auth login` or HF_TOKEN. Call `check_repo` first.

    Args:
        folder: The folder that `maxup export` wrote.
        repo: The name of the repository, such as "me/my-model".

    Raises:
        LoadError: The files cannot be uploaded. They stay in the folder.
    """
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        address = api.create_repo(repo, private=True, exist_ok=True)
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Upload a model trained with MaxUp")
    except Exception as error:  # of the network, of the server, or about the token
        raise LoadError(
            f"cannot upload {folder} to {repo} ({error_message(error)[:300]}); the files are in {folder}: "
            f"check the name, log in with hf auth login, then run  hf upload {repo} {folder} --private"
        ) from error
    return str(address)
