"""The processes that run attempts: started, kept warm, limited, ended."""
