-- An answer of another host. ARGV: uid, body, bound of a queue. Whose it may be has been looked at.
if redis.call('HEXISTS', P .. 'backlog', ARGV[1]) == 0 then
  if redis.call('EXISTS', R .. 'done:' .. ARGV[1]) == 1 then
    count('answers-repeated')
    return 'repeated'
  end
  count('answers-unasked')
  return 'unasked'
end
if not has_room(P .. 'reply', tonumber(ARGV[3])) then
  count('answers-deferred')
  return 'queue'
end
-- So that it can be told from what an application of this host puts there.
redis.call('HSET', R .. 'vetted', ARGV[1], redis.sha1hex(ARGV[2]))
redis.call('RPUSH', P .. 'reply', ARGV[2])
count('answers-received')
return 'accepted'
