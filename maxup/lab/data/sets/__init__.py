"""The data sets. Every module in this package registers the data sets it loads.

Listing data sets imports these modules, so they import torch and other heavy packages inside functions only.
"""
