-- What is kept under the first key, and the marks it must have been kept under to hold.
return redis.call('MGET', unpack(KEYS))
