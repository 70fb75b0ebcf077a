"""Records on their way to a closed batch: conversion, placement, staging and open batches."""
