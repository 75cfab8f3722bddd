"""Upload an exported model to the Hugging Face Hub."""

from pathlib import Path

from maxup.errors import LoadError, error_message


def push_to_hub(folder: Path, repo: str) -> str:
    """Upload the files of an exported model, and return the address of the repository.

    A new repository is private. The token is the one of `hf auth login` or HF_TOKEN.

    Args:
        folder: The folder that `maxup export` wrote.
        repo: The name of the repository, such as "me/my-model".

    Raises:
        LoadError: The files cannot be uploaded. They stay in the folder.
    """
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise LoadError(f"--push_to_hub needs huggingface_hub: pip install huggingface_hub ({error})") from error
    try:
        api = HfApi()
        address = api.create_repo(repo, private=True, exist_ok=True)
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Upload a model trained with MaxUp")
    except Exception as error:  # of the network, of the server, or about the name or the token
        raise LoadError(
            f"cannot upload {folder} to {repo} ({error_message(error)[:300]}); the files are in {folder}: "
            f"check the name, log in with hf auth login, then run  hf upload {repo} {folder}"
        ) from error
    return str(address)
