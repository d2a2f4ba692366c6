from tests.jobs.conftest import reuse_decoders as reuse_decoders
