-- Does, to keys of nobody's, everything that the other scripts do: a right that is missing shows here, and whether the
-- server takes writes at all.
redis.call('SET', USED, '1')
redis.call('INCRBY', USED, '2')
redis.call('DECRBY', USED, '1')
redis.call('SET', LIMIT, '1')
redis.call('HSET', LOADED, 'epoch', '0', 'at', here(), 'own_limit', '0')
redis.call('HSET', INFLIGHT, '', '0')
redis.call('HEXISTS', INFLIGHT, '')
redis.call('SADD', REFUNDED, '')
redis.call('SCARD', REFUNDED)
redis.call('HSET', LOADING, table.concat(redis.call('TIME'), '.'), '')
redis.call('EXPIRE', LOADING, '1')
redis.call('HGET', LOADING, '')
redis.call('HDEL', LOADING, '')
local counts = loaded_epoch() == '0' and at_most(redis.call('GET', USED), '2')
redis.call('DEL', USED, LIMIT, LOADED, INFLIGHT, REFUNDED, LOADING)
return {counts and 'usable' or 'unusable'}
