from api.client.client import LikenessClient as LikenessClient
