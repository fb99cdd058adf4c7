"""Its settings; the environment says which database and which broker."""

from __future__ import annotations

import json
import os

SECRET_KEY = "of the tests"
USE_TZ = True
INSTALLED_APPS = ["popclient.frameworks.django", "tests.frameworks.django.shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": json.loads(os.environ["SHOP_DATABASE"])}
POPMQ = json.loads(os.environ["SHOP_POPMQ"])
