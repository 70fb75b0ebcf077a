"""Records on their way to a batch: serializers, interceptors, partitioners, futures."""
