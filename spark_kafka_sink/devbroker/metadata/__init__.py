"""The metadata of a cluster: the records of its log, and the image that each broker builds."""
