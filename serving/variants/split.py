"""Route a call to the champion's or the challenger's bundle, by a hash of its user."""

from weir.contracts import Key, hash_id
from weir.contracts.variants import challenges
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.serving.bundle import LoadedBundle

__all__ = ["Request", "chosen", "only"]

Request = pb.RetrieveRequest | pb.EmbedRequest


def only(request: Request, champion: LoadedBundle) -> LoadedBundle:  # noqa: ARG001 - the place of `chosen`
    """Return the only bundle, of a server without variants."""
    return champion


def chosen(request: Request, champion: LoadedBundle, challenger: LoadedBundle, share: float) -> LoadedBundle:
    """Return the bundle that answers all queries of a call: an answer names one bundle.

    A pinned bundle answers itself. Otherwise the first user in a Retrieve call decides, by a hash of its key
    (`weir.contracts.variants.challenges`). The champion answers calls without a user, and every Embed call, whose
    vectors may later be sent back as queries without their user.
    """
    if request.bundle_version:
        return challenger if request.bundle_version == challenger.version else champion
    user = _first_user(request, champion.key_secret) if isinstance(request, pb.RetrieveRequest) else None
    is_challengers = user is not None and challenges(user, challenger.manifest.variant, share)
    return challenger if is_challengers else champion


def _first_user(request: pb.RetrieveRequest, secret: str) -> Key | None:
    for query in request.queries:
        if query.WhichOneof("source") == "user_id":
            return hash_id(query.user_id, secret)
    return None
