"""TCP proxies for tests: in front of a broker or of the API server, each on a port of its own choice."""

from tests.support.proxies.api_server import ApiProxy
from tests.support.proxies.base import Proxy
from tests.support.proxies.cutting import CuttingProxy
from tests.support.proxies.damaging import ChangingProxy, DamagingProxy
from tests.support.proxies.switched import SwitchedProxy

__all__ = ["ApiProxy", "ChangingProxy", "CuttingProxy", "DamagingProxy", "Proxy", "SwitchedProxy"]
