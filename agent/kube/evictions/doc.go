package evictions
